"""What people start: the command line and the chat page."""
