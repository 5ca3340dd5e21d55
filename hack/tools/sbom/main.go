// Command sbom writes what Go binaries were built of as a CycloneDX document: the modules that the
// linker has noted in them, with their versions, and the toolchain. The same binaries give the same
// document.
//
//	sbom NAME VERSION FILE...
package main

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, args []string) error {
	if len(args) < 3 {
		return errors.New("a name, a version and at least one binary are needed, as sbom NAME VERSION FILE")
	}
	document, err := describe(args[0], args[1], args[2:])
	if err != nil {
		return err
	}
	return cdx.NewBOMEncoder(out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(document)
}

// describe has a component per binary and one per module, and says which binary depends on what.
func describe(name, version string, files []string) (*cdx.BOM, error) {
	document := cdx.NewBOM()
	product := cdx.Component{BOMRef: name, Type: cdx.ComponentTypeApplication, Name: name, Version: version}
	document.Metadata = &cdx.Metadata{Component: &product}
	modules := map[string]cdx.Component{}
	var binaries []cdx.Component
	of := []cdx.Dependency{{Ref: name, Dependencies: &[]string{}}}
	for _, file := range files {
		binary, uses, err := binary(file, version)
		if err != nil {
			return nil, err
		}
		refs := make([]string, 0, len(uses))
		for _, module := range uses {
			modules[module.BOMRef] = module
			refs = append(refs, module.BOMRef)
		}
		slices.Sort(refs)
		binaries = append(binaries, binary)
		*of[0].Dependencies = append(*of[0].Dependencies, binary.BOMRef)
		of = append(of, cdx.Dependency{Ref: binary.BOMRef, Dependencies: &refs})
	}
	components := binaries
	for _, module := range modules {
		components = append(components, module)
	}
	slices.SortFunc(components, func(a, b cdx.Component) int { return cmp.Compare(a.BOMRef, b.BOMRef) })
	document.Components, document.Dependencies = &components, &of
	return document, nil
}

// binary reads what the linker has noted in a file.
func binary(file, version string) (cdx.Component, []cdx.Component, error) {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return cdx.Component{}, nil, fmt.Errorf("%s is no binary that Go has built: %w", file, err)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return cdx.Component{}, nil, err
	}
	sum := sha256.Sum256(content)
	name := filepath.Base(file)
	component := cdx.Component{
		BOMRef: "file:" + name, Type: cdx.ComponentTypeApplication, Name: name, Version: version,
		Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
	}
	uses := []cdx.Component{module("std", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, dependency := range info.Deps {
		uses = append(uses, used(dependency))
	}
	return component, uses, nil
}

// used is what was built in a module's place, if it was replaced.
func used(m *debug.Module) cdx.Component {
	if m.Replace != nil {
		m = m.Replace
	}
	return module(m.Path, m.Version)
}

// module is named by its package URL: https://github.com/package-url/purl-spec, type golang.
func module(path, version string) cdx.Component {
	purl := "pkg:golang/" + path + "@" + version
	return cdx.Component{BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: purl}
}
