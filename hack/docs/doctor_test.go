package docs

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/mica-gpu/mica/pkg/kubectl/doctor"
	"github.com/mica-gpu/mica/test/fixture"
)

// command tells a fix to copy from a sentence.
var command = regexp.MustCompile(`^(kubectl|helm|aws) `)

// The checks are documented as they are: with -update, the test writes their part of the page.
func TestTheDoctorsChecksAreDocumented(t *testing.T) {
	const heading = "## All checks\n\n"
	written, _, found := strings.Cut(read(t, "../../docs/operate/doctor.md"), heading)
	if !found {
		t.Fatalf("docs/operate/doctor.md has no heading %q", heading)
	}
	var page strings.Builder
	page.WriteString(written + heading + fmt.Sprintf("There are %d. Words in capitals stand for the names of a finding.\n", len(doctor.Checks())))
	for _, check := range doctor.Checks() {
		fmt.Fprintf(&page, "\n### %s\n\n%s\n\nFinds: %s. Looks at: %s.\n\n", check.Name, check.Why, check.Severity, check.Looks)
		if command.MatchString(check.Fix) {
			fmt.Fprintf(&page, "```text\n%s\n```\n\n", check.Fix)
		} else {
			page.WriteString(check.Fix + "\n\n")
		}
		fmt.Fprintf(&page, "Source: %s.\n", check.Source)
	}
	fixture.Golden(t, "../../../docs/operate/doctor.md", page.String())
}
