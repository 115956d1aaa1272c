"""The widgets of the console. Each draws a part of the model and keeps no state of the run itself."""
