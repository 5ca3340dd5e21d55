package observability_test

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const dashboardFiles = "../helm/mica/dashboards/*.json"

// anySource is the data source that the dashboard's variable chooses.
const anySource = "${datasource}"

type dashboard struct {
	UID           string   `json:"uid"`
	Title         string   `json:"title"`
	Description   string   `json:"description"`
	Tags          []string `json:"tags"`
	SchemaVersion int      `json:"schemaVersion"`
	Templating    struct {
		List []variable `json:"list"`
	} `json:"templating"`
	Panels []panel `json:"panels"`
}

type variable struct {
	Name       string          `json:"name"`
	Type       string          `json:"type"`
	Datasource *source         `json:"datasource"`
	Definition string          `json:"definition"`
	Query      json.RawMessage `json:"query"`
}

type source struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

type panel struct {
	ID          int     `json:"id"`
	Type        string  `json:"type"`
	Title       string  `json:"title"`
	Description string  `json:"description"`
	Interval    string  `json:"interval"`
	Datasource  *source `json:"datasource"`
	GridPos     struct {
		X, Y, W, H int
	} `json:"gridPos"`
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
	Targets []struct {
		Datasource *source `json:"datasource"`
		Expr       string  `json:"expr"`
		RefID      string  `json:"refId"`
	} `json:"targets"`
}

func dashboards(t *testing.T) map[string]dashboard {
	t.Helper()
	all := map[string]dashboard{}
	for _, path := range glob(t, dashboardFiles) {
		var d dashboard
		if err := json.Unmarshal([]byte(read(t, path)), &d); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all[path] = d
	}
	return all
}

func TestDashboardsHaveWhatGrafanaNeeds(t *testing.T) {
	text := read(t, page)
	for path, d := range dashboards(t) {
		if want := "mica-" + strings.TrimSuffix(filepath.Base(path), ".json"); d.UID != want {
			t.Errorf("%s has the UID %q, want %s", path, d.UID, want)
		}
		if !strings.HasPrefix(d.Title, "Mica / ") || d.Description == "" || !slices.Contains(d.Tags, "mica") || d.SchemaVersion < 39 {
			t.Errorf("%s has the title %q, the description %q, the tags %q and schema %d", path, d.Title, d.Description, d.Tags, d.SchemaVersion)
		}
		if !strings.Contains(text, "*"+d.Title+"*") {
			t.Errorf("%s does not explain %s", page, d.Title)
		}
		expectVariables(t, path, d)
		ids := map[int]bool{}
		for _, p := range d.Panels {
			if ids[p.ID] {
				t.Errorf("%s: two panels have the ID %d", path, p.ID)
			}
			ids[p.ID] = true
			expectPanel(t, path+": "+p.Title, p)
		}
		expectNoOverlap(t, path, d.Panels)
	}
}

var (
	reference = regexp.MustCompile(`\$\{?(\w+)`)
	// drawn are the kinds of panels that every Grafana has.
	drawn = []string{"stat", "timeseries", "table"}
)

func expectVariables(t *testing.T, path string, d dashboard) {
	t.Helper()
	defined := map[string]bool{}
	for i, v := range d.Templating.List {
		defined[v.Name] = true
		switch {
		case i == 0:
			if v.Name != "datasource" || v.Type != "datasource" || string(v.Query) != `"prometheus"` {
				t.Errorf("%s: the first variable is %s, want the data source", path, v.Name)
			}
		case v.Datasource == nil || v.Datasource.UID != anySource:
			t.Errorf("%s: variable %s asks the data source %v, want %s", path, v.Name, v.Datasource, anySource)
		default:
			expectKnownMetrics(t, path+": variable "+v.Name, strings.NewReplacer("label_values(", "", ",", " ").Replace(v.Definition))
		}
	}
	for _, name := range reference.FindAllStringSubmatch(read(t, path), -1) {
		if !defined[name[1]] && !strings.HasPrefix(name[1], "__") {
			t.Errorf("%s uses the variable %s, which it does not define", path, name[1])
		}
	}
}

func expectPanel(t *testing.T, what string, p panel) {
	t.Helper()
	if p.Title == "" {
		t.Errorf("%s panel %d has no title", what, p.ID)
	}
	if p.Type == "row" {
		return
	}
	if !slices.Contains(drawn, p.Type) {
		t.Errorf("%s is a %s, want one of %q", what, p.Type, drawn)
	}
	if !strings.HasSuffix(p.Description, ".") {
		t.Errorf("%s has the description %q, which is no sentence", what, p.Description)
	}
	if p.FieldConfig.Defaults.Unit == "" {
		t.Errorf("%s has no unit", what)
	}
	if p.Datasource == nil || *p.Datasource != (source{"prometheus", anySource}) {
		t.Errorf("%s has the data source %v, want %s", what, p.Datasource, anySource)
	}
	if len(p.Targets) == 0 {
		t.Errorf("%s has no query", what)
	}
	refs := map[string]bool{}
	for _, target := range p.Targets {
		if refs[target.RefID] || target.RefID == "" {
			t.Errorf("%s: two queries are called %q", what, target.RefID)
		}
		refs[target.RefID] = true
		if strings.Contains(target.Expr, "[$__interval]") && p.Interval == "" {
			t.Errorf("%s: query %s has windows of $__interval, which may be shorter than two scrapes: give the panel an interval", what, target.RefID)
		}
		if target.Datasource == nil || target.Datasource.UID != anySource {
			t.Errorf("%s: query %s has the data source %v, want %s", what, target.RefID, target.Datasource, anySource)
		}
		expectKnownMetrics(t, what, target.Expr)
	}
}

func expectNoOverlap(t *testing.T, path string, panels []panel) {
	t.Helper()
	const columns = 24
	taken := map[[2]int]string{}
	for _, p := range panels {
		g := p.GridPos
		if g.W < 1 || g.H < 1 || g.X < 0 || g.X+g.W > columns {
			t.Errorf("%s: %s is at %+v, beyond the %d columns", path, p.Title, g, columns)
			continue
		}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if other, found := taken[[2]int{x, y}]; found && other != p.Title {
					t.Errorf("%s: %s overlaps %s", path, p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
	}
}
