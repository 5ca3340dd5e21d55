package prepare

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
)

// FuzzDecodeConfig feeds the decoder what anybody may write into a claim: it
// must answer with a configuration of a known kind or with one sentence.
func FuzzDecodeConfig(f *testing.F) {
	for _, seed := range []string{
		``, `null`, `[]`, `"GpuConfig"`, `{"kind":"GpuConfig"}`,
		`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig"}`,
		`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Default"}}}`,
		`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":50}}}`,
		`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":"10Gi","defaultPerDevicePinnedMemoryLimit":{"0":"1Mi","GPU-1":2e9},"multiUser":true}}}`,
		`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":-1,"defaultPerDevicePinnedMemoryLimit":{"":"9999999999999E"}}}}`,
		`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"MigDeviceConfig","sharing":{"strategy":"MPS","mpsConfig":{}}}`,
		`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"MigDeviceConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{}}}`,
		`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"MigDeviceConfig","sharing":null}`,
		`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"VfioDeviceConfig","iommu":{"backendPolicy":"LegacyOnly"}}`,
		`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","Sharing":{}}`,
		`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","kind":"MigDeviceConfig"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		decoded, kind, err := decodeConfig(runtime.RawExtension{Raw: raw})
		if err != nil {
			if decoded != nil || strings.TrimSpace(err.Error()) == "" {
				t.Errorf("got %v beside error %q", decoded, err)
			}
			return
		}
		if kinds[kind] == nil {
			t.Errorf("decoded %s although its kind %q is unknown", raw, kind)
		}
		if shared, can := decoded.(sharingConfig); can {
			if asked, err := shared.sharing(); err != nil && asked != nil { // may refuse, must not panic
				t.Errorf("got %v beside error %q", asked, err)
			}
		}
	})
}
