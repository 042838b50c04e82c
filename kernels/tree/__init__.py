"""Operations on token trees."""
