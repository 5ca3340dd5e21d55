package excerpt

import "testing"

func TestOf(t *testing.T) {
	for _, test := range []struct {
		text string
		most int
		want string
	}{
		{"", 0, ""},
		{"exact", 5, "exact"},
		{"longer", 5, "lo…"},
		{"aäöü", 7, "aäöü"},
		{"aäöü", 6, "aä…"},
		{"äöüß", 6, "ä…"}, // the third byte is half a character
		{"no room", 1, "…"},
	} {
		if got := Of(test.text, test.most); got != test.want {
			t.Errorf("%q in %d bytes is %q, want %q", test.text, test.most, got, test.want)
		}
	}
}
