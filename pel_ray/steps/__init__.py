"""The steps of the flow: each reads folders or sources and leaves one finished folder behind."""
