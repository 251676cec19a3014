/*
 * Browsers start no worker from a file. The search of this site runs in one, so where the site
 * is opened from a disk, a hidden frame takes the worker's place: same script, same messages.
 */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      const script = String(new URL(url, document.baseURI)).replaceAll('"', "%22");
      this.frame.srcdoc = `<script>
        window.postMessage = data => parent.dispatchEvent(
          new CustomEvent("message-of-worker", { detail: { frame: frameElement, data } }));
      </` + `script><script src="${script}"></` + "script>";
      this.heard = event => {
        if (event.detail.frame === this.frame) {
          this.dispatchEvent(new MessageEvent("message", { data: event.detail.data }));
        }
      };
      window.addEventListener("message-of-worker", this.heard);
      this.frame.addEventListener("load", () => {
        this.isReady = true;
        this.waiting.splice(0).forEach(data => this.postMessage(data));
      });
      const attach = () => document.body.append(this.frame);
      document.body ? attach() : addEventListener("DOMContentLoaded", attach);
    }

    postMessage(data) {
      if (!this.isReady) this.waiting.push(data);
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      window.removeEventListener("message-of-worker", this.heard);
      this.frame.remove();
    }
  };
}
