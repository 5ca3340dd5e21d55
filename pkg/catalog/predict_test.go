package catalog

import (
	"errors"
	"strings"
	"testing"
)

func TestPredict(t *testing.T) {
	for id, want := range map[PCIDeviceID]struct {
		profiles int
		refusal  string
	}{
		0x2330: {profiles: 7},
		0x233d: {profiles: 7}, // a geometry without a board
		0x2bb5: {profiles: 11},
		0x1eb8: {profiles: 0}, // a T4
		0x2941: {refusal: "MIG profiles of GB200 (PCI device ID 2941) are not predicted: memory and engines from 3g on was never captured; use a node that is there as the template"},
		0x31c2: {refusal: "GB300"},
		0xffff: {refusal: "the catalogue does not know the board"},
	} {
		profiles, err := Predict(id)
		switch {
		case want.refusal == "" && (err != nil || len(profiles) != want.profiles):
			t.Errorf("%s: got %d profiles and %v, want %d", id, len(profiles), err, want.profiles)
		case want.refusal != "" && (!errors.Is(err, ErrNotPredicted) || !strings.Contains(err.Error(), want.refusal)):
			t.Errorf("%s: got %v, want an ErrNotPredicted that says %q", id, err, want.refusal)
		}
	}
}

func TestNoBoardIsBothCompleteAndIncomplete(t *testing.T) {
	for _, b := range load().incomplete {
		for _, id := range b.PCIDeviceIDs {
			if _, complete := GeometryByPCIDeviceID(id); complete {
				t.Errorf("%s (%s) has a geometry", b.Board, id)
			}
		}
		if b.Board == "" || b.Missing == "" || len(b.PCIDeviceIDs) == 0 {
			t.Errorf("%+v lacks a field", b)
		}
	}
}
