package crash_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/test/fixture"
	simulated "github.com/mica-gpu/mica/test/nvmlsim/mps"
)

// everyShape is a policy that offers GPUs in all ways at once.
var everyShape = &v1alpha1.GPUPolicy{
	TypeMeta:   metav1.TypeMeta{APIVersion: "mica.gpu/v1alpha1", Kind: "GPUPolicy"},
	ObjectMeta: metav1.ObjectMeta{Name: "every-shape", UID: "uid-policy", Generation: 1},
	Spec: v1alpha1.GPUPolicySpec{Shapes: v1alpha1.Shapes{
		Whole:     &v1alpha1.Whole{},
		TimeSlice: &v1alpha1.TimeSlice{Replicas: 20, Interval: "Short"},
		MPS:       &v1alpha1.MPS{Clients: 20},
		MIG: &v1alpha1.MIG{Shared: []v1alpha1.SharedProfile{
			{Profile: "1g.10gb", TimeSlice: &v1alpha1.TimeSlice{Replicas: 4}},
			{Profile: "3g.40gb", MPS: &v1alpha1.MPS{Clients: 4}},
		}},
	}},
}

// Shared devices, and one whose claim sets an interval.
const (
	sliced      = "gpu-0-timeslice"
	served      = "gpu-0-mps"
	slicedSmall = small + "-timeslice"
	servedBig   = big + "-mps"
	slicedThere = "gpu-1-timeslice"
	servedThere = "gpu-4-mig-3g40gb-9-4-mps"
)

const (
	setTimeSlice = "nvmlSimDeviceSetTimeslice"
	setMode      = "nvmlDeviceSetComputeMode"
	setMIG       = "nvmlDeviceSetMigMode"
)

// sharing is how the claim of a scene shares devices.
type sharing struct {
	name    string
	devices []string
	config  string
	// beside another claim, which has shares of the same devices.
	beside bool
	// daemon is the one of the first device, if any.
	daemon string
	// idleMIG: an administrator has left MIG enabled on the GPU.
	idleMIG bool
	// changes are the functions by which each operation changes a GPU.
	changes map[string][]string
}

var daemonOfItsOwn = config("GpuConfig", `{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":40,"defaultPinnedDeviceMemoryLimit":"8Gi","defaultPerDevicePinnedMemoryLimit":{"1":"4Gi"}}}`)

func config(kind, sharing string) string {
	return fmt.Sprintf(`{"apiVersion":"resource.nvidia.com/v1beta1","kind":%q,"sharing":%s}`, kind, sharing)
}

func both(function string) map[string][]string {
	return map[string][]string{"prepare": {function}, "unprepare": {function}}
}

var sharings = []sharing{
	{
		name: "slices", devices: []string{sliced}, idleMIG: true,
		changes: map[string][]string{"prepare": {setMIG, setTimeSlice}, "unprepare": {setTimeSlice}},
	},
	{name: "clients", devices: []string{served}, daemon: served, changes: both(setMode)},
	{name: "clients of a partition", devices: []string{servedBig}, daemon: servedBig, changes: changesOf},
	{
		name: "an interval of its own", devices: []string{"gpu-0"}, changes: both(setTimeSlice),
		config: config("GpuConfig", `{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`),
	},
	{
		name: "a daemon of its own", devices: []string{"gpu-0", "gpu-3"}, daemon: "claim-uid-c-0", changes: both(setMode),
		config: daemonOfItsOwn,
	},
	{name: "further slices", devices: []string{sliced}, beside: true},
	{name: "further slices of a partition", devices: []string{slicedSmall}, beside: true},
	{name: "further clients", devices: []string{served}, daemon: served, beside: true},
	{name: "further clients of a partition", devices: []string{servedBig}, daemon: servedBig, beside: true},
}

// client is a process that MPS serves.
type client struct {
	connection net.Conn
	answers    *bufio.Scanner
}

func (n *node) connect(daemon string) *client {
	n.Helper()
	connection, err := net.Dial("unix", n.path("mps/"+daemon+"/pipe/control"))
	n.must(err)
	n.Cleanup(func() { connection.Close() })
	c := &client{connection, bufio.NewScanner(connection)}
	n.must(c.ask(simulated.Request{Connect: &simulated.Connect{}}))
	return c
}

func (c *client) ask(request simulated.Request) error {
	if err := json.NewEncoder(c.connection).Encode(request); err != nil {
		return err
	}
	if !c.answers.Scan() {
		return fmt.Errorf("the daemon has hung up: %w", c.answers.Err())
	}
	var reply simulated.Reply
	if err := json.Unmarshal(c.answers.Bytes(), &reply); err != nil || reply.Error != "" {
		return errors.Join(err, errors.New(reply.Error))
	}
	return nil
}

// works reports whether the client's contexts are still there.
func (c *client) works() error {
	return c.ask(simulated.Request{Allocate: &simulated.Allocate{Bytes: 1 << 20}})
}

// newShareScene is a node on which another claim has a share, elsewhere or of the same
// device, and the claim is about to be prepared or unprepared. Where the claim or the
// other one is a client, a process of it runs.
func newShareScene(t *testing.T, how sharing, operation string) (s *scene, others *client) {
	t.Helper()
	s = &scene{node: newNode(t, everyShape), cutShort: operation, preparedBefore: operation == "unprepare"}
	s.supervise()
	if how.idleMIG {
		s.must(s.gpu.SetMIGMode(0, true))
		s.idleMIG[0] = true
	}
	s.plugin = s.start()
	s.other, s.claim = s.put("other", slicedThere), s.putConfigured("c", how.config, how.devices...)
	if how.beside {
		s.other = s.put("other", how.devices...)
	}
	s.must(s.plugin.prepare(s.within(), s.other))
	s.others = s.devices()
	if how.beside && how.daemon != "" {
		others = s.connect(how.daemon)
	}
	if s.preparedBefore {
		s.must(s.plugin.prepare(s.within(), s.claim))
		if how.daemon != "" {
			s.connect(how.daemon) // a process that kubelet has not ended yet
		}
	}
	return s, others
}

// The plugin is killed while a GPU is about to be changed for a share, and when it just
// has been.
func TestSharesKilledAtEachChangeOfAGPU(t *testing.T) {
	t.Parallel()
	for _, how := range sharings {
		for operation, functions := range how.changes {
			for i, function := range functions {
				for _, after := range []bool{false, true} {
					gone := (i%2 == 0) == after
					t.Run(fmt.Sprintf("%s, %s, %s, after=%t, gone=%t", how.name, operation, function, after, gone), func(t *testing.T) {
						t.Parallel()
						s, _ := newShareScene(t, how, operation)
						s.killDuring(function, after)
						fixture.Eventually(t, "the end of what the plugin ran", s.noToolOfThePlugin)
						s.recover(gone)
					})
				}
			}
		}
	}
}

// noToolOfThePlugin: what a killed plugin has started must not change a GPU later.
func (s *scene) noToolOfThePlugin() error {
	for _, tool := range s.tools() {
		if tool.place == "" {
			return fmt.Errorf("%q still runs", tool.arguments)
		}
	}
	return nil
}

// victims are who is killed, by the names of tests.
var victims = []struct {
	name                       string
	plugin, supervisor, daemon bool
}{
	{"the plugin", true, false, false},
	{"the supervisor", false, true, false},
	{"the plugin and the supervisor", true, true, false},
	{"the daemon", false, false, true},
	{"all", true, true, true},
}

// stride is how far apart the changes are at which a process is killed: there are
// hundreds, a scene takes most of a second, and each kind of share begins elsewhere.
var stride = flag.Int("stride", 8, "kill at each nth change of a file that is made for a share; 1 takes minutes")

// At the nth change of a file, of the plugin's or of MPS's, one of those who work on a
// share is killed, or several at once.
func TestSharesKilledAtEachChangeOfAFile(t *testing.T) {
	t.Parallel()
	for i, how := range sharings {
		if how.changes != nil && how.daemon == "" {
			continue // partitions and intervals have had their kills
		}
		for j, operation := range []string{"prepare", "unprepare"} {
			t.Run(how.name+", "+operation, func(t *testing.T) {
				t.Parallel()
				var halfway atomic.Int32
				t.Cleanup(func() {
					if t.Logf("%d kills met the claim halfway", halfway.Load()); halfway.Load() == 0 && how.changes != nil && *stride == 1 {
						t.Error("no kill met the claim halfway")
					}
				})
				s, _ := newShareScene(t, how, operation)
				for count, all := (2*i+j)%*stride, s.changes(math.MaxInt); count < all; count += *stride {
					victim := victims[(count+2*i+j)%len(victims)]
					if how.daemon == "" {
						victim = victims[0]
					}
					t.Run(fmt.Sprintf("change %d, %s", count+1, victim.name), func(t *testing.T) {
						t.Parallel()
						s, others := newShareScene(t, how, operation)
						s.changes(count + 1)
						if victim.plugin {
							s.plugin.kill()
						}
						intent := s.halfway()
						if victim.daemon {
							s.killDaemons()
						}
						if victim.supervisor {
							s.supervisor.kill()
						}
						if intent {
							halfway.Add(1)
						}
						if !victim.plugin {
							s.must(s.gpu.Clear())
							s.revive()
							<-s.done
						}
						s.recover(intent && victim.plugin && count%2 == 0)
						if others != nil && !victim.daemon && !victim.supervisor {
							s.must(others.works())
						}
					})
				}
			})
		}
	}
}

// killDaemons kills the control daemons as the kernel does that is out of memory.
func (n *node) killDaemons() {
	n.Helper()
	for _, tool := range n.tools() {
		if tool.place != "" && !tool.server() {
			_ = syscall.Kill(tool.pid, syscall.SIGKILL) // it may have ended
		}
	}
}

// What an administrator has chosen stays so, and one that is killed must not take what
// it has set itself for it.
func TestTheComputeModeOfAnAdministrator(t *testing.T) {
	t.Parallel()
	for mode, shown := range map[string]string{"ExclusiveProcess": "Exclusive_Process", "Prohibited": "Prohibited"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s, _ := newShareScene(t, sharing{devices: []string{served}, daemon: served}, "prepare")
			s.setMode("gpu-0", mode)
			s.modes[0] = shown
			s.must(s.order(nil))
			s.must(s.plugin.prepare(s.within(), s.claim))
			further := s.put("further", served)
			s.must(s.plugin.prepare(s.within(), further))
			s.must(s.order(nil))
			s.plugin.kill()
			s.plugin = s.start()
			s.must(s.plugin.unprepare(s.within(), s.claim))
			s.must(s.order(nil))
			if mode != "ExclusiveProcess" {
				s.claim, s.cutShort = further, "unprepare"
				s.killDuring(setMode, true)
				<-s.done
				s.must(s.gpu.Clear())
				s.plugin = s.start()
			}
			s.must(s.plugin.unprepare(s.within(), further))
			s.must(s.order(nil))
			s.must(s.prepared(s.other))
		})
	}
}

// setMode is an administrator's nvidia-smi -c. The simulator's has none, so another
// process of this test calls NVML.
func (n *node) setMode(device, mode string) {
	n.Helper()
	state, err := n.gpu.State()
	n.must(err)
	for _, g := range state.GPUs {
		if fmt.Sprint("gpu-", g.Minor) != device {
			continue
		}
		self, err := os.Executable()
		n.must(err)
		command := exec.Command(self)
		command.Env = append(os.Environ(), administrator+"="+n.path("root"), "UUID="+g.UUID, "MODE="+mode)
		if out, err := command.CombinedOutput(); err != nil {
			n.Fatalf("set the compute mode: %v: %s", err, out)
		}
	}
}

// Both processes and the daemons of a node end at once while claims are prepared, as
// when its containers' runtime is restarted the hard way.
func TestEverythingIsKilledWhileSharesAreInUse(t *testing.T) {
	t.Parallel()
	s, _ := newShareScene(t, sharing{devices: []string{served}, daemon: served}, "unprepare")
	partition, own := s.put("partition", servedThere), s.putConfigured("own", daemonOfItsOwn, "gpu-3", "gpu-5")
	s.must(s.plugin.prepare(s.within(), partition))
	s.must(s.plugin.prepare(s.within(), own))
	s.must(s.order(nil))
	clientOfOwn := s.connect("claim-uid-own-0")
	s.plugin.kill()
	s.supervisor.kill()
	s.killDaemons()
	if clientOfOwn.works() == nil {
		t.Error("the client's daemon is killed, and it works on")
	}
	s.revive()
	fixture.Eventually(t, "order after the start", func() error { return s.order(nil) })
	s.must(s.prepared(s.other, s.claim, partition, own))
	s.must(s.connect("claim-uid-own-0").works())
	s.must(s.plugin.unprepare(s.within(), own))
	s.must(s.plugin.unprepare(s.within(), partition))
	s.must(s.plugin.unprepare(s.within(), s.claim))
	s.must(s.order(nil))
	s.must(s.prepared(s.other))
}

// A reset takes the time-slice and the compute mode of a GPU, and so does a kernel
// driver that lets go of it while no process holds it: kubelet asks for its claims
// again.
func TestSharedGPUsThatWereReset(t *testing.T) {
	t.Parallel()
	for _, how := range []sharing{{devices: []string{sliced}, beside: true}, {devices: []string{served}, beside: true}} {
		t.Run(how.devices[0], func(t *testing.T) {
			t.Parallel()
			s, _ := newShareScene(t, how, "unprepare")
			s.plugin.kill()
			s.must(s.gpu.Reset(0))
			s.setMode("gpu-0", "Default") // which the simulator's reset does not
			s.plugin = s.start()
			s.prepareBoth(nil)
			s.must(s.plugin.unprepare(s.within(), s.claim))
			s.must(s.plugin.unprepare(s.within(), s.other))
			s.must(s.order(nil))
		})
	}
}
