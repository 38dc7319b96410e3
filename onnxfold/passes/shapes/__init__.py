"""What the pass symbolic-shapes changes: operands that say shapes, lists of sizes, fixed dims."""
