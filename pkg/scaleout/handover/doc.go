// Package handover reports sick GPUs to tools that repair nodes: in a condition and an annotation of the Node, from the taints
// that its plugin publishes. It does not repair, cordon or drain.
//
// The controller writes them, because RBAC cannot limit a plugin to its own Node. The right on nodes/status suffices: the API
// server accepts annotations with a Node's status, as kubelet relies on.
package handover
