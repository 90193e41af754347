"""The engine: one worker process per device, torch inside, no network; see docs/spec/engine.md."""
