package containerd

import (
	"strings"
	"testing"
)

func TestRuntimesThatIgnoreCDI(t *testing.T) {
	for reported, want := range map[string]string{
		"containerd://2.4.0":          "",
		"containerd://2.0.0-rc.1":     "",
		"containerd://1.7.27":         "set enable_cdi = true",
		"containerd://1.7.0-eks-1abc": "set enable_cdi = true",
		"containerd://v1.6.36":        "upgrade it to 2.0",
		"containerd://unknown":        "",
		"cri-o://1.34.1":              "",
		"":                            "",
	} {
		if got := Advice(reported); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want one with %q", reported, got, want)
		}
	}
}
