"""Jobs: prompts that any willing node answers later, while their author does not wait."""
