package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/pages"
)

//go:generate go test . -run TestTheReferenceIsThatOfTheCommands -update

const referenceHead = `---
title: kubectl gpu
description: Every command of the plugin of kubectl, with its flags.
weight: 40
---

# kubectl gpu

<!-- Made of the commands by ` + "`go generate ./cmd/kubectl-gpu`" + `. Change their texts in cmd/kubectl-gpu. -->

` + "`make build`" + ` makes ` + "`bin/kubectl-gpu`" + `: put it on the ` + "`PATH`" + `, and kubectl finds it. It reads the cluster with your own rights. Only ` + "`cordon`" + ` and ` + "`uncordon`" + ` change something there.
`

// The page with all commands is made of the commands: run this test with -update after a change.
func TestTheReferenceIsThatOfTheCommands(t *testing.T) {
	root := newCommand()
	var page strings.Builder
	page.WriteString(referenceHead)
	for _, command := range allCommands(root) {
		text := command.Long
		if text == "" {
			text = command.Short + "."
		}
		fmt.Fprintf(&page, "\n## %s\n\n%s\n", command.CommandPath(), prose(text))
		if command.Example != "" {
			fmt.Fprintf(&page, "\n```text\n%s\n```\n", strings.TrimRight(command.Example, "\n"))
		}
		page.WriteString(flagTable(command.LocalNonPersistentFlags()))
	}
	page.WriteString("\n## Flags of every command\n" + flagTable(root.PersistentFlags()))
	fixture.Golden(t, "../../../docs/reference/kubectl-gpu.md", page.String())
}

// Commands that the pages show are known, and so are their flags.
func TestCommandsOfThePagesCanBeParsed(t *testing.T) {
	commands, err := pages.Commands("../..", "kubectl gpu")
	if err != nil {
		t.Fatal(err)
	}
	for _, shown := range commands {
		line, _, _ := strings.Cut(strings.TrimPrefix(shown.Line, "kubectl gpu"), " #")
		line, _, _ = strings.Cut(line, " | ")
		command, rest, err := newCommand().Find(strings.Fields(line))
		if err != nil || !command.Runnable() {
			t.Errorf("%s: kubectl gpu%s: there is no such command: %v", shown.Where, line, err)
			continue
		}
		if err := command.ParseFlags(rest); err != nil {
			t.Errorf("%s: kubectl gpu%s: %v", shown.Where, line, err)
		}
	}
	if len(commands) < 3 {
		t.Errorf("only %d commands were found: does the test look for the right thing?", len(commands))
	}
}

// allCommands are those that do something, below this one, by name.
func allCommands(command *cobra.Command) []*cobra.Command {
	var found []*cobra.Command
	for _, child := range command.Commands() {
		if child.Hidden {
			continue
		}
		if child.Runnable() {
			found = append(found, child)
		}
		found = append(found, allCommands(child)...)
	}
	return found
}

// prose keeps indented lines, which are examples, as they are.
func prose(text string) string {
	var out []string
	verbatim := false
	for _, line := range append(strings.Split(strings.TrimSpace(text), "\n"), "") {
		indented := strings.HasPrefix(line, "  ") || strings.HasPrefix(line, "\t")
		if indented && !verbatim {
			out = append(out, "```text")
		}
		if !indented && verbatim {
			out = append(out, "```")
		}
		verbatim = indented
		if !indented {
			line = strings.NewReplacer("<", "&lt;", ">", "&gt;", "*", `\*`).Replace(line)
		}
		out = append(out, line)
	}
	return strings.TrimSpace(strings.Join(slices.Compact(out), "\n"))
}

func flagTable(flags *pflag.FlagSet) string {
	var table strings.Builder
	flags.VisitAll(func(flag *pflag.Flag) {
		if flag.Hidden || flag.Name == "help" {
			return
		}
		if table.Len() == 0 {
			table.WriteString("\n| flag | default | meaning |\n|---|---|---|\n")
		}
		name := "`--" + flag.Name + "`"
		if flag.Shorthand != "" {
			name = "`-" + flag.Shorthand + "`, " + name
		}
		preset := ""
		if flag.DefValue != "" && flag.DefValue != "false" && flag.DefValue != "[]" {
			preset = "`" + flag.DefValue + "`"
		}
		fmt.Fprintf(&table, "| %s | %s | %s |\n", name, preset, strings.NewReplacer("|", `\|`, "<", "&lt;", ">", "&gt;", "*", `\*`, "\n", " ").Replace(flag.Usage))
	})
	return table.String()
}
