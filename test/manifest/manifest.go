// Package manifest reads the files of examples/ for the tests: their objects, and the pods that come
// of them. It is only imported by tests, and never asks a cluster.
package manifest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

// Files are the manifests below a directory of examples: those that stand alone, and those of its
// directories.
func Files(directory string) ([]string, error) {
	var files []string
	for _, pattern := range []string{"*.yaml", "*/*.yaml"} {
		found, err := filepath.Glob(filepath.Join(directory, pattern))
		if err != nil {
			return nil, err
		}
		files = append(files, found...)
	}
	return files, nil
}

// Read decodes the objects of a file: those of Kubernetes' own kinds strictly, as an example must not
// teach a field that does not exist, the others as *unstructured.Unstructured.
func Read(content []byte) ([]runtime.Object, error) {
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	var objects []runtime.Object
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the documents of the file: %w", err)
		}
		object, _, err := decoder.Decode(document, nil, nil)
		if runtime.IsNotRegisteredError(err) {
			object, err = decodeUnknown(document)
		}
		if err != nil {
			return nil, err
		}
		objects = append(objects, object)
	}
}

func decodeUnknown(document []byte) (*unstructured.Unstructured, error) {
	content, err := yaml.ToJSON(document)
	if err != nil {
		return nil, err
	}
	object := &unstructured.Unstructured{}
	return object, object.UnmarshalJSON(content)
}
