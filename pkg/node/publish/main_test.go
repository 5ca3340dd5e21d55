package publish

import (
	"testing"

	"github.com/mica-gpu/mica/test/fixture/apiserver"
)

func TestMain(m *testing.M) { apiserver.Main(m) }
