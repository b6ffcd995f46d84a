package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// image writes an image of a program with the given content and returns the bytes of the archive.
func image(t *testing.T, content, user string, names ...string) []byte {
	t.Helper()
	dir := t.TempDir() // another directory, and another time, for each image
	program := filepath.Join(dir, "master")
	if err := os.WriteFile(program, []byte(content), 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "image.tar")
	if err := write(file, names, program, user); err != nil {
		t.Fatal(err)
	}
	archive, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return archive
}

// files returns the files of an archive by name.
func files(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	list := map[string]string{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		list[header.Name] = string(content)
	}
}

func TestSameProgramGivesTheSameImage(t *testing.T) {
	first := image(t, "program", "65532", "a:1")
	if !bytes.Equal(first, image(t, "program", "65532", "a:1")) {
		t.Error("two images of one program differ")
	}
	if bytes.Equal(first, image(t, "other", "65532", "a:1")) {
		t.Error("images of two programs are equal")
	}
}

func TestImageHasItsNamesAndUser(t *testing.T) {
	list := files(t, image(t, "program", "65532", "a:1", "a:dev"))
	var index struct {
		Manifests []struct {
			Digest      string
			Annotations map[string]string
		}
	}
	if err := json.Unmarshal([]byte(list["index.json"]), &index); err != nil || len(index.Manifests) != 2 {
		t.Fatalf("%v: %s", err, list["index.json"])
	}
	for i, name := range []string{"a:1", "a:dev"} {
		m := index.Manifests[i]
		if m.Annotations["io.containerd.image.name"] != name || m.Digest != index.Manifests[0].Digest {
			t.Errorf("manifest %d: %+v, expected the name %s", i, m, name)
		}
	}
	var manifest struct {
		Config struct{ Digest string }
		Layers []struct{ Digest string }
	}
	blob := func(digest string) string { return list["blobs/sha256/"+strings.TrimPrefix(digest, "sha256:")] }
	if err := json.Unmarshal([]byte(blob(index.Manifests[0].Digest)), &manifest); err != nil || len(manifest.Layers) != 1 {
		t.Fatalf("%v: %+v", err, manifest)
	}
	if config := blob(manifest.Config.Digest); !strings.Contains(config, `"User":"65532"`) || !strings.Contains(config, `"Entrypoint":["/master"]`) {
		t.Errorf("configuration %s", config)
	}
	if layer := files(t, []byte(blob(manifest.Layers[0].Digest))); layer["master"] != "program" || !strings.Contains(layer["etc/passwd"], "65532") {
		t.Errorf("layer %v", layer)
	}
}
