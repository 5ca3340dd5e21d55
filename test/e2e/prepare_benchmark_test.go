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

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/utils/ptr"
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
			one := []*drapb.Claim{claim}
			single = append(single, s.timeEach(one, plugin.prepare))
			s.timeEach(one, plugin.unprepare)
		}
		burst = append(burst, s.timeEach(claims, plugin.prepare))
		s.timeEach(claims, plugin.unprepare)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(milliseconds(median(single)), "one-claim-ms")
	b.ReportMetric(milliseconds(median(burst)), "all-gpus-at-once-ms")
	b.ReportMetric(milliseconds(slices.Max(burst)), "all-gpus-at-once-worst-ms")
}

// sharesAtOnce is how many further shares of one GPU are prepared at once.
const sharesAtOnce = 16

// BenchmarkPrepareFurtherShare measures what kubelet waits for when a GPU is shared already:
// in time-slices and under MPS, one claim after the other and many at once.
func BenchmarkPrepareFurtherShare(b *testing.B) {
	for _, kind := range []string{kindTimeSlice, kindMPS} {
		b.Run(kind, func(b *testing.B) {
			s, _ := newShareScenario(b, len(under.devices))
			plugin := s.dialPlugin()
			device := ofKind(s.shares, kind)[0]
			first := s.allocate("first", device, ptr.To(uuid.NewUUID()))
			must(b, plugin.prepare(b.Context(), first), "prepare the first share")
			var further []*drapb.Claim
			for _, name := range names("further", sharesAtOnce) {
				further = append(further, s.allocate(name, device, ptr.To(uuid.NewUUID())))
			}

			var single, burst []time.Duration
			for b.Loop() {
				for _, claim := range further {
					one := []*drapb.Claim{claim}
					single = append(single, s.timeEach(one, plugin.prepare))
					s.timeEach(one, plugin.unprepare)
				}
				burst = append(burst, s.timeEach(further, plugin.prepare))
				s.timeEach(further, plugin.unprepare)
			}
			must(b, plugin.unprepare(b.Context(), first), "unprepare the first share")
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(milliseconds(median(single)), "further-share-ms")
			b.ReportMetric(milliseconds(median(burst)), fmt.Sprintf("%d-at-once-ms", sharesAtOnce))
		})
	}
}

// BenchmarkPluginMemory reports the plugin's resident memory after all that was done to it
// so far.
func BenchmarkPluginMemory(b *testing.B) {
	plugin, err := under.readyPlugin(b.Context())
	must(b, err, "find the plugin")
	var resident float64
	for b.Loop() {
		resident, err = under.metric(b.Context(), plugin, "process_resident_memory_bytes")
		must(b, err, "read the plugin's memory")
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(resident/1e6, "resident-MB")
}

// allocateEveryGPU makes a claim for each GPU and allocates it as the scheduler would, so
// that no pod and no kubelet takes part.
func (s *scenario) allocateEveryGPU() []*drapb.Claim {
	s.Helper()
	var claims []*drapb.Claim
	for _, device := range s.devices {
		claims = append(claims, s.allocate("bench-"+device.name, device, nil))
	}
	return claims
}

// allocate makes a claim that has a device, or the share of it with an ID.
func (s *scenario) allocate(name string, device device, share *types.UID) *drapb.Claim {
	s.Helper()
	claim := s.createClaim(name, s.claimFor(1))
	result := resourcev1.DeviceRequestAllocationResult{
		Request: claim.Spec.Devices.Requests[0].Name,
		Driver:  s.driver, Pool: s.node, Device: device.name, ShareID: share,
	}
	for capacity, value := range device.Capacity {
		if share != nil && value.RequestPolicy != nil {
			if result.ConsumedCapacity == nil {
				result.ConsumedCapacity = map[resourcev1.QualifiedName]resource.Quantity{}
			}
			result.ConsumedCapacity[capacity] = *value.RequestPolicy.Default
		}
	}
	claim.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
		Results: []resourcev1.DeviceRequestAllocationResult{result},
	}}
	_, err := s.client.ResourceV1().ResourceClaims(s.namespace).UpdateStatus(s.Context(), claim, metav1.UpdateOptions{})
	must(s, err, "allocate %s", device.name)
	return &drapb.Claim{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}
}

// dialPlugin connects to the socket that kubelet uses.
func (s *scenario) dialPlugin() pluginSocket {
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
	return pluginSocket{drapb.NewDRAPluginClient(connection)}
}

// pluginSocket calls the plugin as kubelet does.
type pluginSocket struct{ client drapb.DRAPluginClient }

func (p pluginSocket) prepare(ctx context.Context, claim *drapb.Claim) error {
	response, err := p.client.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{claim}})
	if err != nil {
		return fmt.Errorf("prepare %s: %w", claim.Name, err)
	}
	if result := response.Claims[claim.Uid]; result.GetError() != "" || len(result.GetDevices()) != 1 {
		return fmt.Errorf("prepare %s: %d devices, error %q, want one device", claim.Name, len(result.GetDevices()), result.GetError())
	}
	return nil
}

func (p pluginSocket) unprepare(ctx context.Context, claim *drapb.Claim) error {
	response, err := p.client.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{claim}})
	if err != nil {
		return fmt.Errorf("unprepare %s: %w", claim.Name, err)
	}
	if text := response.Claims[claim.Uid].GetError(); text != "" {
		return fmt.Errorf("unprepare %s: %s", claim.Name, text)
	}
	return nil
}

// timeEach makes a call for every claim at once and measures until the last has returned.
func (s *scenario) timeEach(claims []*drapb.Claim, call func(context.Context, *drapb.Claim) error) time.Duration {
	s.Helper()
	start := time.Now()
	var group errgroup.Group
	for _, claim := range claims {
		group.Go(func() error { return call(s.Context(), claim) })
	}
	must(s, group.Wait(), "call the plugin")
	return time.Since(start)
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
