package pages

import (
	"slices"
	"testing"
)

func TestBlocksOf(t *testing.T) {
	blocks, err := blocksOf("page.md", []byte("# Page\n\n1. A step\n\n   ```sh {run=TestX}\n   make \\\n     build\n   make test\n   ```\n\n"+
		"```console {needs=hardware}\n$ jq '\n    .a'\n[1]\n$ make lint\n```\n"))
	if err != nil || len(blocks) != 2 {
		t.Fatalf("got %v, %v, want two blocks", blocks, err)
	}
	step, session := blocks[0], blocks[1]
	if step.String() != "page.md:6" || step.Language != "sh" || step.Attributes["run"] != "TestX" || !step.IsShell() {
		t.Errorf("the first block is %+v", step)
	}
	if got, want := step.Commands("make"), []string{"make build", "make test"}; !slices.Equal(got, want) {
		t.Errorf("the first block has the commands %q, want %q", got, want)
	}
	if got, want := session.Script(), "jq '\n    .a'\nmake lint\n"; got != want {
		t.Errorf("the second block has the script %q, want %q", got, want)
	}
}
