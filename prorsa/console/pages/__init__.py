"""The console's screens, one a tab. Each draws a part of the model; the frame around them is the same."""
