// Package fit reports whether a pod fits on a node, and what is then left of the node. The node need not exist. Package
// fit runs the scheduler's own allocator and selectors, and filters by CPU, memory, taints and labels like the
// scheduler. It is pure: no client, no clock. It never decides which node is best, or what to do if none fits.
package fit
