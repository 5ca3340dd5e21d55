// Package externalscaler is the wire of KEDA's external scalers: messages, client and server,
// generated from externalscaler.proto. It holds no behaviour. A process cannot link it and KEDA's
// own package of these messages, because both register the same names.
package externalscaler

//go:generate go -C ../../hack/tools run ./protogo ../../api/externalscaler externalscaler.proto
