"""Engine, which computes shards in one worker process per device. Spec: docs/spec/engine.md."""
