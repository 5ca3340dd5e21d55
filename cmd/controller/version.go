package main

import "github.com/mica-gpu/mica/pkg/release"

// linked is set by the linker for released images.
var linked string

func version() string { return release.Version(linked) }
