package scaleout

import (
	"slices"
	"testing"
)

func TestAVectorDoesNotChange(t *testing.T) {
	base := vectorOf(make([]int, chunk+1))
	longer := base.append(7)
	changed := base.with(chunk, 8)
	far := base.with(5*chunk, 9)
	if got := []int{base.at(chunk), base.at(chunk + 1), base.len}; !slices.Equal(got, []int{0, 0, chunk + 1}) {
		t.Errorf("the first vector has become %v", got)
	}
	if got := []int{longer.at(chunk + 1), longer.len, changed.at(chunk), changed.len}; !slices.Equal(got, []int{7, chunk + 2, 8, chunk + 1}) {
		t.Errorf("the vectors made of it are %v", got)
	}
	if got := []int{far.at(5 * chunk), far.at(3 * chunk), far.len, len(far.list())}; !slices.Equal(got, []int{9, 0, 5*chunk + 1, 5*chunk + 1}) {
		t.Errorf("a vector with a value beyond its end is %v", got)
	}
}
