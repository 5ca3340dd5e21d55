//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// BenchmarkPrepare measures what kubelet waits for: NodePrepareResources over the plugin's
// own socket, with living claims that the plugin reads from the API server, one after the
// other and a claim for every GPU at once.
func BenchmarkPrepare(b *testing.B) {
	s := newScenario(b, len(under.devices))
	claims := s.allocateEveryGPU()
	plugin := s.dialPlugin()

	var single, burst []time.Duration
	for b.Loop() {
		for _, claim := range claims {
			single = append(single, timed(func() { s.prepareOverSocket(plugin, claim) }))
			s.unprepareOverSocket(plugin, claim)
		}
		burst = append(burst, timed(func() { s.eachAtOnce(claims, func(claim *drapb.Claim) { s.prepareOverSocket(plugin, claim) }) }))
		s.eachAtOnce(claims, func(claim *drapb.Claim) { s.unprepareOverSocket(plugin, claim) })
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(milliseconds(median(single)), "one-claim-ms")
	b.ReportMetric(milliseconds(median(burst)), "all-gpus-at-once-ms")
	b.ReportMetric(milliseconds(slices.Max(burst)), "all-gpus-at-once-worst-ms")
}

// allocateEveryGPU makes a claim for each GPU and allocates it as the scheduler would, so
// that no pod and no kubelet takes part.
func (s *scenario) allocateEveryGPU() []*drapb.Claim {
	s.Helper()
	var claims []*drapb.Claim
	for _, device := range s.devices {
		claim := s.createClaim("bench-"+device.name, s.claimFor(1))
		claim.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
			Results: []resourcev1.DeviceRequestAllocationResult{{
				Request: claim.Spec.Devices.Requests[0].Name,
				Driver:  s.driver, Pool: s.node, Device: device.name,
			}},
		}}
		_, err := s.client.ResourceV1().ResourceClaims(s.namespace).UpdateStatus(s.Context(), claim, metav1.UpdateOptions{})
		must(s, err, "allocate %s", device.name)
		claims = append(claims, &drapb.Claim{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)})
	}
	return claims
}

// dialPlugin connects to the socket that kubelet uses.
func (s *scenario) dialPlugin() drapb.DRAPluginClient {
	s.Helper()
	machine := s.onNode(s)
	root, err := machine.pluginRoot(s.Context())
	must(s, err, "find the plugin's directory")
	pod, err := s.readyPlugin(s.Context())
	must(s, err, "find the plugin")
	// The way through /proc/PID/root can be longer than a socket's path may be.
	directory, err := os.Open(filepath.Join(root, s.pluginsDirectory, s.driver))
	must(s, err, "open the plugin's directory")
	socket := fmt.Sprintf("unix:///proc/self/fd/%d/dra-%s.sock", directory.Fd(), pod.UID)
	connection, err := grpc.NewClient(socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(s, err, "dial the plugin")
	s.Cleanup(func() { must(s, errors.Join(connection.Close(), directory.Close()), "hang up") })
	return drapb.NewDRAPluginClient(connection)
}

func (s *scenario) prepareOverSocket(plugin drapb.DRAPluginClient, claim *drapb.Claim) {
	s.Helper()
	response, err := plugin.NodePrepareResources(s.Context(), &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{claim}})
	must(s, err, "prepare %s", claim.Name)
	if result := response.Claims[claim.Uid]; result.GetError() != "" || len(result.GetDevices()) != 1 {
		s.Errorf("prepare %s: %d devices, error %q, want one device", claim.Name, len(result.GetDevices()), result.GetError())
	}
}

func (s *scenario) unprepareOverSocket(plugin drapb.DRAPluginClient, claim *drapb.Claim) {
	s.Helper()
	response, err := plugin.NodeUnprepareResources(context.WithoutCancel(s.Context()), &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{claim}})
	must(s, err, "unprepare %s", claim.Name)
	if text := response.Claims[claim.Uid].GetError(); text != "" {
		s.Errorf("unprepare %s: %s", claim.Name, text)
	}
}

func (s *scenario) eachAtOnce(claims []*drapb.Claim, do func(*drapb.Claim)) {
	done := make(chan struct{}, len(claims))
	for _, claim := range claims {
		go func() {
			do(claim)
			done <- struct{}{}
		}()
	}
	for range claims {
		<-done
	}
}

func timed(do func()) time.Duration {
	start := time.Now()
	do()
	return time.Since(start)
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
