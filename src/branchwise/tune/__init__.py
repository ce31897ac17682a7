"""What a tree costs on this machine and how large it should be."""
