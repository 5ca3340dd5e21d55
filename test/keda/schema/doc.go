// Package schema owns the tests that hold the ScaledObjects that Mica prints, and those in the
// examples, against what KEDA accepts: the schemas of its kinds, with no field that they do not
// know, and what its admission webhook checks without a cluster.
package schema
