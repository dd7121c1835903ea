"""Speed, memory and accuracy, beside named peers and the published figures."""
