package driver

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/fixture/apiserver"
)

// A plugin that starts on a disk without a byte or an inode publishes the node's devices and releases claims:
// the pods that end are what makes space. Its sockets take the inodes of those of the process before.
func TestAStartOnAFullDisk(t *testing.T) {
	going, coming := fixture.Claim("going", fixture.Result("a", "gpu-0")), fixture.Claim("coming", fixture.Result("a", "gpu-1"))
	api := apiserver.New(going, coming)
	o := options(t, api, newHardware(t))
	disk := filepath.Dir(o.CDIRoot)
	fixture.SmallDisk(t, disk)
	must(t, os.Mkdir(o.RegistrarDir, 0o700))
	_, stop := run(t, o)
	register(t, o).prepared(going)
	fixture.FillDisk(t, disk)
	stop()
	api = apiserver.New(going, coming) // without slices
	o.Client = api
	sockets := fixture.FillDisk(t, disk)
	_, k, _ := serving(t, o, func(*Driver) { sockets() })
	if got := len(api.Slices(t)); got != sliceCount {
		t.Errorf("got %d slices", got)
	}
	text := k.prepare(coming)[string(coming.UID)].GetError()
	fixture.Sentence(t, errors.New(text), "claim default/coming", "no space left on device")
	k.unprepare(going)
	if got := specs(t, o); len(got) != 0 {
		t.Errorf("got CDI files %q of a claim that was released", got)
	}
	k.prepared(coming)
	k.unprepare(coming)
}
