"""Observer and Reflector: what they are asked, who plays them, and what is made of their answers."""
