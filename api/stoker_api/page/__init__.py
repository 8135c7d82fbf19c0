"""The web page: its files as they are sent, and the tickets by which a browser signs in and fetches files."""
