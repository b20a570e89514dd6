"""Problems: goals with their tools and their judge."""
