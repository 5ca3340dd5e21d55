// Package handover tells tools that repair nodes which GPUs of a node are sick: in a condition and an
// annotation of the Node, from the taints that the node's plugin has published. It judges no GPU, and
// repairs, cordons and drains nothing.
//
// The controller does it and not the plugin: RBAC cannot limit a plugin to its own Node, and the plugin
// runs privileged on every node. One right on nodes/status is enough for both: the API server takes
// annotations with a Node's status, too, as kubelet relies on.
package handover
