"""The page at `/`: a person talks to a model, and sees that nothing is lost."""
