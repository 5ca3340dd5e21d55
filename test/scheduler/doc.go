// Package scheduler owns the test that pkg/scaleout/fit says of every node what the stock
// scheduler says of it. It is a module of its own, so that k8s.io/kubernetes never enters
// the driver's.
package scheduler
