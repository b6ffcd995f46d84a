// Command mkimg writes an OCI image archive with one layer around a static program:
//
//	mkimg [-user UID] FILE.tar NAME:TAG[,NAME:TAG...] PROGRAM
//
// The program is the entry point. The image also has /etc/passwd and empty directories, /tmp among them, and no shell. The same program gives
// the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path"
	"runtime"
	"strings"
)

func main() {
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: mkimg [-user UID] FILE.tar NAME:TAG[,NAME:TAG...] PROGRAM")
	}
	user := flag.String("user", "", "user `id` of the processes (default: root)")
	flag.Parse()
	if flag.NArg() != 3 {
		flag.Usage()
		os.Exit(2)
	}
	if err := write(flag.Arg(0), strings.Split(flag.Arg(1), ","), flag.Arg(2), *user); err != nil {
		fmt.Fprintf(os.Stderr, "mkimg: %v\n", err)
		os.Exit(1)
	}
}

type object = map[string]any

// write writes an image with several names.
func write(file string, names []string, program, user string) error {
	layer, err := pack(program)
	if err != nil {
		return err
	}
	blobs := [][]byte{layer}
	blob := func(v any) ([]byte, error) {
		text, err := json.Marshal(v)
		blobs = append(blobs, text)
		return text, err
	}
	config, err := blob(object{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": object{"Entrypoint": []string{"/" + path.Base(program)}, "WorkingDir": "/", "User": user},
		"rootfs": object{"type": "layers", "diff_ids": []string{digest(layer)}},
	})
	if err != nil {
		return err
	}
	manifest, err := blob(object{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": object{"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(config), "size": len(config)},
		"layers": []object{{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest(layer), "size": len(layer)}},
	})
	if err != nil {
		return err
	}
	var manifests []object
	for _, name := range names {
		manifests = append(manifests, object{
			"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest(manifest), "size": len(manifest),
			"annotations": object{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name},
		})
	}
	index, err := json.Marshal(object{"schemaVersion": 2, "manifests": manifests})
	if err != nil {
		return err
	}

	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	err = add(w, "oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`))
	if err == nil {
		err = add(w, "index.json", 0o644, index)
	}
	for _, b := range blobs {
		if err == nil {
			err = add(w, "blobs/sha256/"+digest(b)[len("sha256:"):], 0o644, b)
		}
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return err
	}
	return os.WriteFile(file, archive.Bytes(), 0o644)
}

// pack returns the layer.
func pack(program string) ([]byte, error) {
	text, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, name := range []string{"dev/", "etc/", "proc/", "sys/", "tmp/"} {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o1777, Typeflag: tar.TypeDir}); err != nil {
			return nil, err
		}
	}
	if err := add(w, "etc/passwd", 0o644, []byte("root:x:0:0::/:/\nnobody:x:65532:65532::/:/\n")); err != nil {
		return nil, err
	}
	if err := add(w, path.Base(program), 0o755, text); err != nil {
		return nil, err
	}
	return layer.Bytes(), w.Close()
}

func add(w *tar.Writer, name string, mode int64, content []byte) error {
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}

func digest(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }
