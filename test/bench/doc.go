// Package bench owns benchmarks that cross packages: what a layout of slices
// costs the scheduler. It holds no expectations: figures depend on the machine.
package bench
