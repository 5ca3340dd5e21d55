package prepare

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metadatav1beta1 "k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/dynamic-resource-allocation/devicemetadata"

	"github.com/mica-gpu/mica/test/fixture"
)

// mounted is what containers with each device of the claim find, by path, as
// "device: request uuid...".
func mounted(t *testing.T, r *migRig, claim *resourceapi.ResourceClaim) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, device := range r.written(t, claim).Devices {
		for _, mount := range device.ContainerEdits.Mounts {
			content := read(t, mount.HostPath)
			var described metadatav1beta1.DeviceMetadata
			must(t, devicemetadata.DecodeMetadataFromStream(json.NewDecoder(bytes.NewReader([]byte(content))), &described))
			if described.UID != claim.UID {
				t.Errorf("%s is of %s", mount.HostPath, described.UID)
			}
			text := strings.TrimPrefix(device.Name, string(claim.UID)+"-") + ": " + described.Requests[0].Name
			for _, given := range described.Requests[0].Devices {
				text += " " + *given.Attributes["uuid"].StringValue
			}
			found[mount.ContainerPath] = text
		}
	}
	return found
}

// A container finds the UUIDs of its partitions where KEP-5304 says, and a claim
// of whole GPUs, whose UUIDs are in the slice, brings no file.
func TestTheMetadataFile(t *testing.T) {
	const dir = "/var/run/kubernetes.io/dra-device-attributes/"
	for name, tc := range map[string]struct {
		podClaim, dir string
	}{
		"of a claim":                 {"", dir + "resourceclaims/c/"},
		"of a claim from a template": {"gpus", dir + "resourceclaimtemplates/gpus/"},
	} {
		t.Run(name, func(t *testing.T) {
			r, p := runMIG(t)
			claim := fixture.Claim("c", fixture.Result("a", small0), fixture.Result("a", small1), fixture.Result("b/first", big0), fixture.Result("w", "gpu-2"))
			if tc.podClaim != "" {
				claim.Annotations = map[string]string{resourceapi.PodResourceClaimAnnotation: tc.podClaim}
			}
			r.api.put(claim)
			devices := prepare(t, p, claim)
			want := map[string]string{
				tc.dir + "a/gpu.nvidia.com-metadata.json": fmt.Sprintf("%s: a %s %s", small0, devices[0].PartUUID, devices[1].PartUUID),
				tc.dir + "b/gpu.nvidia.com-metadata.json": fmt.Sprintf("%s: b/first %s", big0, devices[2].PartUUID),
			}
			check := func() {
				t.Helper()
				if got := mounted(t, r, claim); fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("got\n%v\nwant\n%v", got, want)
				}
			}
			check()
			must(t, os.RemoveAll(r.cdiDir()))
			must(t, os.Mkdir(r.cdiDir(), 0o755))
			p = r.startMIG(t, nil)
			reconcile(t, p)
			check()
			unprepare(t, p, claim)
			if left, err := filepath.Glob(filepath.Join(r.cdiDir(), "*")); err != nil || len(left) > 0 {
				t.Errorf("got %q, %v, want nothing left", left, err)
			}
		})
	}
}

// Files that a crash has left without a specification are an orphan's, too.
func TestFilesOfAClaimThatIsGone(t *testing.T) {
	r, p := runMIG(t)
	claim := r.allocated("c", small0)
	prepare(t, p, claim)
	remove(t, r.spec(claim))
	remove(t, r.record(claim))
	destroy(t, r, 0)
	r.api.remove(claim)
	reconcile(t, p)
	if left, err := filepath.Glob(filepath.Join(r.cdiDir(), "*")); err != nil || len(left) > 0 {
		t.Errorf("got %q, %v, want nothing left", left, err)
	}
}
