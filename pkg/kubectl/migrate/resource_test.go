package migrate

import "testing"

func TestProfilesOfResourceNames(t *testing.T) {
	for name, want := range map[string]string{
		"nvidia.com/mig-1g.10gb":           "1g.10gb",
		"nvidia.com/mig-1g.10gb.shared":    "1g.10gb",
		"nvidia.com/mig-1g.10gb.me":        "1g.10gb+me",
		"nvidia.com/mig-1g.24gb.me.all":    "1g.24gb+me.all",
		"nvidia.com/mig-1g.24gb-me":        "1g.24gb-me",
		"nvidia.com/mig-1g.24gb.gfx":       "1g.24gb+gfx",
		"nvidia.com/mig-7g.80gb":           "7g.80gb",
		"nvidia.com/mig-1c.3g.40gb":        "",
		"nvidia.com/mig-3g":                "",
		"nvidia.com/mig-":                  "",
		"nvidia.com/mig-1g.10gb'] == '1":   "",
		"nvidia.com/mig-0g.10gb":           "",
		"nvidia.com/mig-1g.10gb.me.shared": "1g.10gb+me",
	} {
		got, err := profileOf(name)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, want)
		}
	}
}

// What a resource means depends on the configs.
func TestMeaning(t *testing.T) {
	replicas := func(n int64) *replicated {
		return &replicated{Resources: []replicatedResource{{Name: "nvidia.com/gpu", Replicas: n}}}
	}
	shares, more, clients, whole, renamed := config{key: "shares"}, config{key: "more"}, config{key: "clients"}, config{key: "whole"}, config{key: "renamed"}
	shares.of.Sharing.TimeSlicing = replicas(4)
	more.of.Sharing.TimeSlicing = replicas(8)
	clients.of.Sharing.MPS = replicas(4)
	renamed.of.Sharing.TimeSlicing = replicas(4)
	renamed.of.Sharing.TimeSlicing.RenameByDefault = true
	for name, test := range map[string]struct {
		configs  []config
		resource string
		n        int64
		want     string
		blocked  bool
	}{
		"no config":                        {nil, "nvidia.com/gpu", 2, "2 devices of gpu.nvidia.com", false},
		"a suffix alone":                   {nil, "nvidia.com/gpu.shared", 3, "3 shares of 1 device of timeslice.nvidia.com", false},
		"a share":                          {[]config{shares}, "nvidia.com/gpu", 1, "1 device of timeslice.nvidia.com", false},
		"as many shares as the most have":  {[]config{shares, more}, "nvidia.com/gpu", 8, "8 shares of 1 device of timeslice.nvidia.com", false},
		"more shares than there are":       {[]config{shares}, "nvidia.com/gpu", 5, "", true},
		"a client":                         {[]config{clients}, "nvidia.com/gpu", 1, "1 device of mps.nvidia.com", false},
		"two clients":                      {[]config{clients}, "nvidia.com/gpu", 2, "", true},
		"shares and clients":               {[]config{shares, clients}, "nvidia.com/gpu", 1, "", true},
		"shares and whole":                 {[]config{whole, shares}, "nvidia.com/gpu", 1, "", true},
		"renamed and whole":                {[]config{whole, renamed}, "nvidia.com/gpu", 1, "1 device of gpu.nvidia.com", false},
		"renamed":                          {[]config{whole, renamed}, "nvidia.com/gpu.shared", 1, "1 device of timeslice.nvidia.com", false},
		"a partition":                      {[]config{shares}, "nvidia.com/mig-1g.10gb", 1, "1 device of mig.nvidia.com with the profile 1g.10gb", false},
		"a compute instance":               {nil, "nvidia.com/mig-1c.3g.40gb", 1, "", true},
		"a shared partition of one config": {[]config{whole}, "nvidia.com/mig-1g.10gb.shared", 1, "1 device of mig-timeslice.nvidia.com with the profile 1g.10gb", false},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := meaningOf(test.configs).ask(test.resource, test.n)
			if (err != nil) != test.blocked {
				t.Fatal(a, err)
			}
			if err == nil && a.String() != test.want {
				t.Errorf("got %s, want %s", a, test.want)
			}
		})
	}
}
