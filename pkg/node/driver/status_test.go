package driver

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/fixture/apiserver"
)

const (
	partition0 = "gpu-0-mig-1g10gb-19-0"
	partition1 = "gpu-0-mig-3g40gb-9-4"
)

// entriesOf are the entries of a claim's status.devices, as "device data".
func entriesOf(t *testing.T, api *apiserver.Server, name string) []string {
	t.Helper()
	claim, err := api.ResourceV1().ResourceClaims(fixture.Namespace).Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	var entries []string
	for _, device := range claim.Status.Devices {
		if device.Driver != fixture.Driver || device.Pool != fixture.NodeName {
			t.Errorf("got an entry of %s/%s", device.Driver, device.Pool)
		}
		entries = append(entries, device.Device+" "+string(device.Data.Raw))
	}
	return entries
}

// A claim's status has the UUIDs of its partitions. Prepare does not wait for it if
// the API server takes no writes.
func TestTheStatusHasThePartitions(t *testing.T) {
	one := fixture.Claim("one", fixture.Result("a", partition0), fixture.Result("b", partition1), fixture.Result("c", "gpu-3"))
	whole := fixture.Claim("whole", fixture.Result("a", "gpu-5"))
	api, h := apiserver.New(one, whole), newHardware(t)
	api.Fail("patch", "resourceclaims", 1)
	o := options(t, api, h)
	_, k, stop := serving(t, o)
	k.prepared(one)
	k.prepared(whole)
	var want []string
	for _, instance := range h.machine.Instances(0) {
		device := partition0
		if instance.Start == 4 {
			device = partition1
		}
		want = append(want, fmt.Sprintf(`%s {"parentUUID":%q,"uuid":%q}`, device, h.node.GPUs[0].UUID, instance.ComputeInstances[0].UUID))
	}
	want = append(want, fmt.Sprintf(`gpu-3 {"uuid":%q}`, h.node.GPUs[3].UUID))
	complete := func() error {
		got := strings.Join(entriesOf(t, api, "one"), "\n")
		for _, entry := range want {
			if !strings.Contains(got, entry) || len(strings.Split(got, "\n")) != len(want) {
				return fmt.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
			}
		}
		return nil
	}
	fixture.Eventually(t, "the status", complete)
	if got := entriesOf(t, api, "whole"); len(got) > 0 {
		t.Errorf("a write of %q, which is in the slice already", got)
	}
	// The next process writes what this one may not have got around to.
	stop()
	claim, err := api.ResourceV1().ResourceClaims(fixture.Namespace).Get(t.Context(), "one", metav1.GetOptions{})
	must(t, err)
	claim.Status.Devices = nil
	if _, err := api.ResourceV1().ResourceClaims(fixture.Namespace).UpdateStatus(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	run(t, o)
	fixture.Eventually(t, "the status after a restart", complete)
}

// What the API server never takes is given up, and so is what came too late.
func TestReportsAreBounded(t *testing.T) {
	r := newReporter(apiserver.New(), fixture.Driver)
	devices := []journal.Device{{Device: partition0, UUID: "GPU-0", PartUUID: "MIG-0"}}
	for i := range maxReports + 10 {
		claim := fixture.Claim(fmt.Sprint("c", i))
		r.add(types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}, claim.UID, devices)
	}
	if got := len(r.pending); got != maxReports {
		t.Errorf("%d reports are pending, want %d", got, maxReports)
	}
	r.forget("uid-c0")
	if got := len(r.pending); got != maxReports-1 {
		t.Errorf("%d reports are pending, want one less than %d", got, maxReports)
	}
	api := apiserver.New()
	api.Fail("patch", "resourceclaims", 1000)
	r = newReporter(api, fixture.Driver)
	claim := fixture.Claim("c")
	r.add(types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}, claim.UID, devices)
	for attempt := range reportAttempts {
		if done := r.writeAll(t.Context()); done != (attempt == reportAttempts-1) {
			t.Errorf("attempt %d: done: %t", attempt+1, done)
		}
	}
}
