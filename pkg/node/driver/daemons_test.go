package driver

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/mps"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/fixture/apiserver"
)

// sharing is a node with one daemon, and the claims that use it.
type sharing struct {
	*testing.T
	api     *apiserver.Server
	options Options
}

func newSharing(t *testing.T, claims ...*resourceapi.ResourceClaim) *sharing {
	t.Helper()
	var objects []runtime.Object
	for _, claim := range claims {
		objects = append(objects, claim)
	}
	api := apiserver.New(objects...)
	s := &sharing{T: t, api: api, options: options(t, api, newHardware(t))}
	s.options.MPSRoot = filepath.Join(filepath.Dir(s.options.PluginsDir), "mps")
	for _, dir := range []string{"status", "gpu-0-mps", "gpu-1-mps"} {
		must(t, os.MkdirAll(filepath.Join(s.options.MPSRoot, dir), 0o700))
	}
	return s
}

// record makes a claim the client of a daemon.
func (s *sharing) record(claim *resourceapi.ResourceClaim, uid types.UID, daemon string) {
	s.Helper()
	records, err := journal.Open(filepath.Join(DataDir(s.options.PluginsDir, s.options.Name), "claims"))
	must(s, err)
	if err := records.Put(s.Context(), journal.Record{
		ClaimUID: string(uid), Namespace: claim.Namespace, Name: claim.Name, BootID: s.options.BootID, State: journal.Prepared,
		Devices: []journal.Device{{Request: "r", Pool: s.options.NodeName, Device: "gpu-0-mps", UUID: "GPU-0", Form: gpu.Form{Base: gpu.BaseWhole},
			Steps: []journal.Step{{Name: "run-daemon", Data: fmt.Appendf(nil, `{"daemon":%q}`, daemon)}}}},
	}); err != nil {
		s.Fatal(err)
	}
}

func (s *sharing) restarted(daemon string, times int) {
	s.Helper()
	content, err := json.Marshal(mps.Status{Daemon: mps.Daemon{ID: daemon, Devices: []string{"GPU-0"}}, State: mps.Ready, Restarts: times})
	must(s, err)
	must(s, os.WriteFile(filepath.Join(s.options.MPSRoot, "status", daemon+".json"), content, 0o600))
}

// plugin is a process of the driver, as far as it looks at daemons.
func (s *sharing) plugin() *Driver {
	s.Helper()
	d, err := New(s.options)
	must(s, err)
	s.Cleanup(d.events.start())
	return d
}

// events are the texts of the pods' Events.
func (s *sharing) events() map[string]string {
	s.Helper()
	events, err := s.api.CoreV1().Events("").List(s.Context(), metav1.ListOptions{})
	must(s, err)
	texts := map[string]string{}
	for _, event := range events.Items {
		texts[event.InvolvedObject.Namespace+"/"+event.InvolvedObject.Name+"/"+string(event.InvolvedObject.UID)+"/"+event.Reason] += fmt.Sprint(event.Count, " ", event.Message)
	}
	return texts
}

func (s *sharing) expect(count int, parts ...string) {
	s.Helper()
	fixture.Eventually(s.T, "events", func() error {
		found := s.events()
		if len(found) != count {
			return fmt.Errorf("got %v", found)
		}
		for _, part := range parts {
			if !strings.Contains(fmt.Sprint(found), part) {
				return fmt.Errorf("%v does not have %q", found, part)
			}
		}
		return nil
	})
}

func usedBy(claim *resourceapi.ResourceClaim, pods ...string) *resourceapi.ResourceClaim {
	for _, pod := range pods {
		claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod, UID: types.UID("uid-" + pod)})
	}
	return claim
}

func TestPodsGetAnEventWhenTheirMPSDaemonRestarts(t *testing.T) {
	mine, others, again := usedBy(fixture.Claim("mine"), "a", "b"), usedBy(fixture.Claim("others"), "c"), usedBy(fixture.Claim("again"), "d")
	s := newSharing(t, mine, others, again)
	s.record(mine, mine.UID, "gpu-0-mps")
	s.record(others, others.UID, "gpu-1-mps")
	s.record(again, "an-older-uid", "gpu-0-mps")
	s.record(fixture.Claim("gone"), "gone", "gpu-0-mps")
	first, second := s.plugin(), s.plugin() // as in a rolling update
	announce := func() {
		t.Helper()
		must(t, errors.Join(first.announceRestarts(t.Context()), second.announceRestarts(t.Context())))
	}
	s.restarted("gpu-0-mps", 0)
	announce()
	s.restarted("gpu-0-mps", 1)
	announce()
	s.expect(2, mine.Namespace+"/a/uid-a/MPSDaemonRestarted:1 ", mine.Namespace+"/b/uid-b/MPSDaemonRestarted:1 ",
		"the MPS control daemon gpu-0-mps of claim mine has ended and is started again (restart 1): ", "restart the containers that use it")
	s.restarted("gpu-0-mps", 2)
	if err := s.plugin().announceRestarts(t.Context()); err != nil { // of a plugin that was started meanwhile
		t.Fatal(err)
	}
	announce()
	s.expect(2, "(restart 2)")
}

func TestARestartIsAnnouncedWhenTheAPIServerIsBack(t *testing.T) {
	claim := usedBy(fixture.Claim("mine"), "a")
	s := newSharing(t, claim)
	s.record(claim, claim.UID, "gpu-0-mps")
	s.restarted("gpu-0-mps", 1)
	d := s.plugin()
	away := true
	s.api.PrependReactor("get", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
		return away, nil, apiserver.ErrAway
	})
	fixture.Sentence(t, d.announceRestarts(t.Context()), "read claim "+claim.Namespace+"/mine", "gpu-0-mps", apiserver.ErrAway.Error())
	away = false
	must(t, d.announceRestarts(t.Context()))
	s.expect(1, "/a/uid-a/")
}

// A failure to announce one daemon's restart does not affect the others.
func TestARestartIsAnnouncedAlthoughAnotherCannotBe(t *testing.T) {
	unreadable, mine := usedBy(fixture.Claim("aaa-unreadable"), "a"), usedBy(fixture.Claim("mine"), "b")
	s := newSharing(t, unreadable, mine)
	s.record(unreadable, unreadable.UID, "gpu-0-mps")
	s.record(mine, mine.UID, "gpu-1-mps")
	s.restarted("gpu-0-mps", 1)
	s.restarted("gpu-1-mps", 1)
	s.api.PrependReactor("get", "resourceclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return action.(clienttesting.GetAction).GetName() == unreadable.Name, nil, apiserver.ErrAway
	})
	fixture.Sentence(t, s.plugin().announceRestarts(t.Context()), unreadable.Name, apiserver.ErrAway.Error())
	s.expect(1, "/b/uid-b/")
}
