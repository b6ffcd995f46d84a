package portsplit

// IdleAfter is when a reserved connection counts as idle.
const IdleAfter = idleAfter
