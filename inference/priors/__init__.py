"""What priors say: of trees, of edits to a tree, of targets."""
