"""The plugin and the launch command, as far as they can be tested without SGLang."""
