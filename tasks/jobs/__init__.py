"""Jobs: prompts that any willing node answers while their author does not wait."""
