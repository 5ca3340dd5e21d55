package prepare

import (
	"context"
	"errors"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
)

// A shape that is not shipped goes all the way. What it takes to ship one is in
// docs/project/development.md, "Adding a shape": what is here before addToy is two of the files,
// and addToy is shape.go.

// toyShape is an entire GPU in a toy box.
type toyShape struct{ gpu.Whole }

func (s toyShape) Name() string      { return s.Whole.Name() + "-toy" }
func (toyShape) Type() string        { return "toy" }
func (toyShape) Form() gpu.Form      { return gpu.Form{Base: "toy"} }
func (toyShape) MemoryBytes() uint64 { return 7 << 30 }

func (s toyShape) Describe(d gpu.Description) {
	d.Text(gpu.AttributeUUID, s.UUID())
	d.Text("box", "boxed")
	d.Bytes(gpu.CapacityMemory, s.MemoryBytes())
}

// toy puts the GPU into its box.
type toy struct{}

const putIntoBox = "put-into-box"

func (toy) steps() []string { return []string{putIntoBox} }

// lid is the data of the step.
type lid struct {
	Color string `json:"color"`
}

func (toy) inspect(device *journal.Device, _ gpu.GPU, _ []journal.Device, _ Tools) (bool, error) {
	return true, setData(device, putIntoBox, lid{"red"})
}

func (toy) intact(journal.Device, Tools) (bool, error) { return true, nil }

func (toy) edits(device journal.Device, _ Edits) (cdispec.ContainerEdits, error) {
	return cdispec.ContainerEdits{Env: []string{"BOX=" + device.UUID}}, nil
}

// boxes are what the toys are in.
type boxes struct {
	full map[string]bool
	fail error
}

type box struct {
	lid
	boxes *boxes
	gpu   string
}

func (b box) do(context.Context, Tools) error {
	b.boxes.full[b.gpu] = b.Color == "red"
	return b.boxes.fail
}

func (b box) undo(context.Context, Tools) error {
	delete(b.boxes.full, b.gpu)
	return nil
}

// addToy adds the shape, until it is removed or the test ends.
func addToy(t *testing.T) (all *boxes, remove func()) {
	t.Helper()
	all = &boxes{full: map[string]bool{}}
	preparations["toy"] = toy{}
	stepTypes[putIntoBox] = stepType{add: func(w *work, at spot) {
		at.addTo(w, box{dataOf[lid](*at.device(), putIntoBox), all, at.device().UUID})
	}}
	remove = func() {
		delete(preparations, "toy")
		delete(stepTypes, putIntoBox)
	}
	t.Cleanup(remove)
	return all, remove
}

// startToys offers the first GPU as a whole and in its box.
func startToys(t *testing.T, r *migRig) *Preparer {
	t.Helper()
	p := r.startMIG(t, nil)
	node := *p.node.Load()
	toy := toyShape{gpu.Whole{GPU: node.Pool.Shapes["gpu-0"].Physical()}}
	node.Pool.Shapes[toy.Name()] = toy
	p.SetNode(node)
	return p
}

func TestAToyShapeIsPublished(t *testing.T) {
	node := fixture.Node(t, "p5.48xlarge")
	toy := toyShape{gpu.Whole{GPU: node.GPUs[0]}}
	var published, whole resourceapi.Device
	for _, s := range slice.Pool(node, append(gpu.Shapes(node.GPUs[:1], gpu.ByDefault), toy), nil).Slices {
		for _, device := range s.Devices {
			switch device.Name {
			case "gpu-0-toy":
				published = device
			case "gpu-0":
				whole = device
			}
		}
	}
	memory := published.Capacity[gpu.CapacityMemory]
	if *published.Attributes["type"].StringValue != "toy" || *published.Attributes["box"].StringValue != "boxed" || memory.Value.Value() != 7<<30 {
		t.Errorf("published is %+v", published)
	}
	if len(published.ConsumesCounters) != 1 || len(published.ConsumesCounters[0].Counters) != len(whole.ConsumesCounters[0].Counters) {
		t.Errorf("the scheduler does not keep it from the whole GPU: %+v", published.ConsumesCounters)
	}
}

func TestAToyShapeIsPreparedAndUndone(t *testing.T) {
	r := newMIGRigOf(t, 2)
	boxes, _ := addToy(t)
	p := startToys(t, r)
	claim := r.allocated("c", "gpu-0-toy", "gpu-1")
	devices := prepare(t, p, claim)
	if d := devices[0]; d.Form.Base != "toy" || d.Type != "toy" || len(d.Steps) != 1 || d.Steps[0].Name != putIntoBox || !boxes.full[r.uuid(0)] {
		t.Errorf("got %+v, in boxes are %v", d, boxes.full)
	}
	if got := read(t, r.spec(claim)); !strings.Contains(got, "BOX="+r.uuid(0)) {
		t.Errorf("a container gets %s", got)
	}
	refused(t, p, r.allocated("second", "gpu-0"), "claim default/c", "still holds")
	p = startToys(t, r) // as after a crash
	reconcile(t, p)
	prepare(t, p, claim)
	unprepare(t, p, claim)
	r.expect(t)
	if len(boxes.full) != 0 {
		t.Errorf("left are %v", boxes.full)
	}
}

func TestAToyShapeThatFailsIsUndone(t *testing.T) {
	r := newMIGRigOf(t, 2)
	boxes, _ := addToy(t)
	boxes.fail = explained{errors.New("the lid is stuck: push")}
	_, err := startToys(t, r).Prepare(testContext(t), r.allocated("c", "gpu-0-toy"))
	fixture.Sentence(t, err, "claim default/c", `request "r0"`, "the lid is stuck: push")
	r.expect(t)
	if len(boxes.full) != 0 {
		t.Errorf("left are %v", boxes.full)
	}
}

// What this build does not know is never taken for a whole GPU: it is neither prepared,
// nor offered to a second claim, nor released without undoing what was done.
func TestAShapeThatIsUnknownIsRefused(t *testing.T) {
	r := newMIGRigOf(t, 2)
	boxes, remove := addToy(t)
	p := startToys(t, r)
	claim := r.allocated("c", "gpu-0-toy")
	prepare(t, p, claim)
	remove()

	const unknown = "unknown to this version of the plugin"
	refused(t, p, r.allocated("fresh", "gpu-0-toy"), "claim default/fresh", "device gpu-0-toy", `the shape "toy" is `+unknown)
	refused(t, p, claim, "claim default/c", `the shape "toy" is `+unknown)
	refused(t, p, r.allocated("second", "gpu-0"), "claim default/c", "still holds")
	err := p.Unprepare(testContext(t), claim.UID)
	fixture.Sentence(t, err, "claim default/c", `the step "put-into-box", which this version of the plugin does not know`)
	if !boxes.full[r.uuid(0)] {
		t.Error("it was released")
	}
	if _, found, err := p.Journal.Get(string(claim.UID)); err != nil || !found {
		t.Errorf("its record is forgotten: %v", err)
	}
}
