"""Live tests of the plugin: real SGLang workers on the CPU test bed."""
