// Package fit reports whether a pod fits on a node, live or imagined, and what is left of the
// node then. It runs the scheduler's own allocator and selectors, and knows what the
// scheduler's filters know of CPU, memory, taints and labels. It is pure: no client, no
// clock. It never decides which node is best, or what to do when none fits.
package fit
